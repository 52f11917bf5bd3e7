# llama.cpp's libraries, out of the tree that llama-cpp-python's sdist brings: bindings and engine are one pin.
{
  lib,
  stdenv,
  cmake,
  ninja,
  fetchPypi,
  autoAddDriverRunpath,
  cudaPackages,
  pins,
  cudaSupport,
}:
let
  inherit (lib) cmakeBool cmakeFeature optionals;
  architectures = lib.concatStringsSep ";" pins.cuda.architectures;
  compiler = if cudaSupport then cudaPackages.backendStdenv else stdenv;
  cudaLibraries = [
    cudaPackages.cuda_cudart
    cudaPackages.libcublas
  ];
  # CMake's installation may put this in place of what the linker was told, so CUDA's own are named again.
  runpath = [ "$ORIGIN" ] ++ map (library: "${lib.getLib library}/lib") (optionals cudaSupport cudaLibraries);
in
compiler.mkDerivation {
  pname = "forgelm-llama-cpp" + lib.optionalString cudaSupport "-cuda";
  version = "${pins.llama_cpp.version}-${lib.substring 0 9 pins.llama_cpp.commit}";

  src = fetchPypi {
    pname = "llama_cpp_python";
    inherit (pins.llama_cpp_python) version sha256;
  };
  sourceRoot = "llama_cpp_python-${pins.llama_cpp_python.version}/vendor/llama.cpp";

  strictDeps = true;
  __structuredAttrs = true;

  nativeBuildInputs = [
    cmake
    ninja
  ]
  ++ optionals cudaSupport [
    cudaPackages.cuda_nvcc
    autoAddDriverRunpath
  ];

  buildInputs = optionals cudaSupport (
    cudaLibraries ++ [ (cudaPackages.cccl or cudaPackages.cuda_cccl) ]
  );

  cmakeFlags = [
    (cmakeBool "BUILD_SHARED_LIBS" true)
    (cmakeFeature "CMAKE_INSTALL_RPATH" (lib.concatStringsSep ";" runpath))

    # Backends are modules: the processor's best one is chosen at the start, and CUDA's is loaded where there is a
    # driver. nixpkgs sets SOURCE_DATE_EPOCH in every build, at which ggml turns each x86 extension off that isn't asked
    # for by name, and a single CPU backend would have no AVX2. Each variant names its own, so none is lost.
    (cmakeBool "GGML_BACKEND_DL" true)
    (cmakeBool "GGML_CPU_ALL_VARIANTS" true)
    (cmakeBool "GGML_NATIVE" false)
    # ggml installs modules as if they were programs; beside libllama they are found without a variable.
    (cmakeFeature "CMAKE_INSTALL_BINDIR" "lib")

    # Nothing may depend on the machine that builds, on git or on the network.
    (cmakeBool "GGML_CCACHE" false)
    (cmakeFeature "LLAMA_BUILD_COMMIT" (lib.substring 0 9 pins.llama_cpp.commit))
    (cmakeFeature "LLAMA_BUILD_NUMBER" "1")

    # Libraries alone: ForgeLM runs none of the programs, and with the tools the web page goes, which is fetched.
    (cmakeBool "LLAMA_BUILD_APP" false)
    (cmakeBool "LLAMA_BUILD_COMMON" false)
    (cmakeBool "LLAMA_BUILD_EXAMPLES" false)
    (cmakeBool "LLAMA_BUILD_TESTS" false)
    (cmakeBool "LLAMA_BUILD_TOOLS" false)

    (cmakeBool "GGML_CUDA" cudaSupport)
  ]
  ++ optionals cudaSupport [
    # Without "-real" there is PTX beside the machine code, from which the driver makes code for newer cards.
    (cmakeFeature "CMAKE_CUDA_ARCHITECTURES" architectures)
    (cmakeBool "GGML_CUDA_NCCL" false)
  ];

  # Virtual machines announce AMX and then fault at its first instruction; the next variant runs on the same processors.
  # Without -f: a variant of another name must be noticed.
  postInstall = ''
    rm "$out/lib/libggml-cpu-sapphirerapids.so"
  '';

  passthru = {
    inherit cudaSupport architectures;
    inherit (pins.llama_cpp) commit;
  };

  meta = {
    description = "llama.cpp's libraries as ForgeLM pins them";
    homepage = "https://github.com/ggml-org/llama.cpp";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" ];
  };
}
