# Prints a directory that holds links to this machine's NVIDIA driver and to nothing else, or prints nothing.
#
# forgelm-host-driver [ROOT]      ROOT stands for / (tests)
#
# A program of Nix has its own libc, so the host's library directories must not be on its path. Of a driver it needs
# libcuda and libnvidia-ml, which are linked by name into a directory of this user, and what these two load themselves: the
# driver's compiler, which makes code for cards newer than those it was built for, and WSL's way to the card. On NixOS, and
# where LD_LIBRARY_PATH leads to a driver already (a container), nothing has to be done. Without a driver nothing is
# printed: the server then says itself that there is no GPU.
set -u
root="${1:-}"

[ -e "$root/run/opengl-driver/lib" ] && exit 0

IFS=: read -ra given <<<"${LD_LIBRARY_PATH:-}"
for directory in "${given[@]}"; do
  [ -n "$directory" ] && [ -e "$directory/libcuda.so.1" ] && exit 0
done

# Where distributions, and WSL, have it; then wherever the loader's own cache says.
places=("$root/usr/lib/x86_64-linux-gnu" "$root/usr/lib64" "$root/usr/lib/wsl/lib")
if [ -x "$root/sbin/ldconfig" ]; then
  while read -r name kind _ path; do
    case "$name $kind" in
      libcuda.so.1\ *x86-64* | libnvidia-ml.so.1\ *x86-64*) places+=("$(dirname "$root$path")") ;;
    esac
  done < <("$root/sbin/ldconfig" -p 2>/dev/null)
fi

# The first place that has a file whose name starts so. `compgen` would do, but nixpkgs' bash for scripts lacks it.
find_library() {
  local place file
  for place in "${places[@]}"; do
    for file in "$place/$1"*; do
      if [ -e "$file" ]; then
        printf '%s\n' "$place"
        return
      fi
    done
  done
}

[ -n "$(find_library libcuda.so.1)" ] || exit 0

if [ -n "${XDG_RUNTIME_DIR:-}" ] && mkdir -p "$XDG_RUNTIME_DIR/forgelm/driver" 2>/dev/null; then
  links="$XDG_RUNTIME_DIR/forgelm/driver"
elif ! links="$(mktemp -d -t forgelm-driver.XXXXXXXX)"; then
  exit 0
fi

# Of a driver that was replaced since; and a server that starts at the same time must never miss a link.
for link in "$links"/*; do
  if [ -L "$link" ] && [ ! -e "$link" ]; then rm -f "$link"; fi
done
for library in libcuda.so.1 libnvidia-ml.so.1 libnvidia-ptxjitcompiler.so.1 libnvidia-nvvm.so.4 libnvidia-gpucomp.so \
  libdxcore.so; do
  place="$(find_library "$library")"
  [ -n "$place" ] || continue
  for file in "$place/${library%%.so*}".so*; do
    ln -sfn "$file" "$links/" || exit 0
  done
done
printf '%s\n' "$links"
