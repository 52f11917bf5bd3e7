{
  description = "ForgeLM: a local inference server for one machine, around llama.cpp";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      # Nothing else is built or tested; on other machines ForgeLM is set up from source.
      system = "x86_64-linux";
      pins = builtins.fromJSON (builtins.readFile ./containers/pins.json);
      revision = self.rev or "unknown";

      # Two package sets of one nixpkgs revision. Neither sets `cudaSupport`: our engine alone asks for CUDA, so that
      # Python and everything else come from the public cache, and only one of them accepts NVIDIA's licence.
      packagesWith =
        config:
        import ./containers/nix {
          pkgs = import nixpkgs { inherit system config; };
          inherit pins revision;
        };
      cpu = packagesWith { };
      cuda = packagesWith {
        allowUnfreePredicate = import ./containers/nix/unfree.nix { inherit (nixpkgs) lib; };
        cudaCapabilities = [ pins.cuda.capability ];
        # Without PTX in nixpkgs' own flags: ours names the architectures itself (llama-cpp.nix).
        cudaForwardCompat = false;
      };

      app = package: {
        type = "app";
        program = "${package}/bin/forgelm-serve";
      };
    in
    {
      packages.${system} = {
        default = cpu.forgelm;
        inherit (cpu)
          forgelm
          llama-cpp
          image
          registry
          ;
        inherit (cuda) forgelm-cuda llama-cpp-cuda image-cuda;
      };

      apps.${system} = {
        default = app cpu.forgelm;
        cuda = app cuda.forgelm-cuda;
      };

      devShells.${system} = {
        default = cpu.shell;
        cuda = cuda.shell-cuda;
      };

      checks.${system} = cpu.checks;

      nixosModules.default = import ./containers/nix/module.nix {
        inherit (self) packages;
        inherit pins;
      };

      # What each image declares, as plain data: to be looked at without building anything.
      lib.imageConfig = {
        cpu = cpu.image.passthru.imageConfig;
        cuda = cuda.image-cuda.passthru.imageConfig;
      };
    };
}
