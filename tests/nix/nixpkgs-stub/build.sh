# The steps of nixpkgs' builder that the engine needs, with this machine's programs. FORGELM_SDIST_DIR: see ../README.md.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck disable=SC1090,SC2154
. "$NIX_ATTRS_SH_FILE"
# As in every build of nixpkgs; ggml reads it.
export SOURCE_DATE_EPOCH=1 HOME="$PWD"
tar -xf "$src"
cd "$sourceRoot"
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="${outputs[out]}" \
  -DCMAKE_INSTALL_BINDIR="${outputs[out]}/bin" "${cmakeFlags[@]}" 2>&1 | tee configure.log
mkdir -p "${outputs[out]}"
cp configure.log build/CMakeCache.txt "${outputs[out]}"
grep -rhoE 'file\(INSTALL DESTINATION "[^"]*" TYPE MODULE [^)]*' build --include cmake_install.cmake \
  >"${outputs[out]}/modules.txt"
