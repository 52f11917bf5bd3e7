# Everything the flake builds, over one nixpkgs. It reads the tree beside it and nothing else. `cudaPkgs` is the same
# nixpkgs with CUDA allowed; nothing but the toolkit is taken from it.
{
  pkgs,
  cudaPkgs,
  pins,
  revision,
}:
let
  inherit (pkgs) lib;
  call = lib.callPackageWith (pkgs // shared // self);

  shared = {
    inherit pins revision;
    version = builtins.head (
      builtins.match ".*__version__ = \"([^\"]+)\".*" (builtins.readFile ../../forgelm/__init__.py)
    );
    # By name and not by `python3`: compiled wheels are for one version of Python (pins.json).
    python = pkgs."python${lib.replaceStrings [ "." ] [ "" ] pins.python.version}";
    cudaPackages = cudaToolkit;
  };

  # The pinned toolkit, or another of its major version: those need the same driver.
  cudaToolkit =
    let
      named = version: "cudaPackages_" + lib.replaceStrings [ "." ] [ "_" ] version;
      exact = named pins.cuda.toolkit;
      major = named (lib.versions.major pins.cuda.toolkit);
    in
    cudaPkgs.${exact} or cudaPkgs.${major} or (throw "nixpkgs has neither ${exact} nor ${major} (containers/pins.json: cuda.toolkit)");

  self = {
    llama-cpp = call ./llama-cpp.nix { cudaSupport = false; };
    llama-cpp-cuda = call ./llama-cpp.nix { cudaSupport = true; };

    bindings = call ./bindings.nix { engine = self.llama-cpp; };
    bindings-cuda = call ./bindings.nix { engine = self.llama-cpp-cuda; };

    forgelm = call ./forgelm.nix { };
    forgelm-cuda = call ./forgelm.nix { bindings = self.bindings-cuda; };

    registry = call ./registry.nix { };

    image = call ./image.nix { };
    image-cuda = call ./image.nix { forgelm = self.forgelm-cuda; };

    shell = call ./shell.nix { };
    shell-cuda = call ./shell.nix { forgelm = self.forgelm-cuda; };

    # Not by `call`, which adds `override` to the set: a flake's checks may hold derivations only.
    checks = import ./checks.nix {
      inherit (pkgs) runCommand;
      inherit (self) forgelm registry;
    };
  };
in
self
