# llama-cpp-python without an engine of its own: `llama_cpp/lib` is a link to the libraries of `engine`.
{
  lib,
  cmake,
  ninja,
  python,
  pins,
  engine,
}:
python.pkgs.buildPythonPackage {
  pname = "llama-cpp-python";
  inherit (pins.llama_cpp_python) version;
  pyproject = true;
  inherit (engine) src;

  nativeBuildInputs = [
    cmake
    ninja
  ];
  build-system = [
    python.pkgs.pathspec
    python.pkgs.pyproject-metadata
    python.pkgs.scikit-build-core
  ];
  dontUseCmakeConfigure = true;
  env.CMAKE_ARGS = "-DLLAMA_BUILD=OFF";

  # What it needs is in the environment that forgelm.nix puts together, some of it in other versions than nixpkgs'.
  dontCheckRuntimeDeps = true;

  postInstall = ''
    package="$out/${python.sitePackages}/llama_cpp"
    rm -rf "$package/lib"
    ln -s ${lib.getLib engine}/lib "$package/lib"
  '';

  # The sdist's tests load models; ours have a server that does.
  doCheck = false;

  passthru = { inherit engine; };

  meta = {
    description = "Python bindings of llama.cpp";
    homepage = "https://github.com/abetlen/llama-cpp-python";
    license = lib.licenses.mit;
  };
}
