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

      # Everything but CUDA's toolkit is of this package set, so that it comes from the public cache.
      packages = import ./containers/nix {
        pkgs = import nixpkgs { inherit system; };
        inherit cudaPkgs pins revision;
      };

      # The same nixpkgs for the toolkit alone: CUDA's packages are refused without `cudaSupport`, which would also have
      # whatever else knows CUDA compiled here instead of downloaded; and NVIDIA's licence is accepted for nothing else.
      cudaPkgs = import nixpkgs {
        inherit system;
        config = {
          cudaSupport = true;
          allowUnfreePredicate = import ./containers/nix/unfree.nix { inherit (nixpkgs) lib; };
          cudaCapabilities = [ pins.cuda.capability ];
          # Without PTX in nixpkgs' own flags: ours names the architectures itself (llama-cpp.nix).
          cudaForwardCompat = false;
        };
      };

      app = package: {
        type = "app";
        program = "${package}/bin/forgelm-serve";
      };
    in
    {
      packages.${system} = {
        default = packages.forgelm;
        inherit (packages)
          forgelm
          forgelm-cuda
          llama-cpp
          llama-cpp-cuda
          image
          image-cuda
          registry
          ;
      };

      apps.${system} = {
        default = app packages.forgelm;
        cuda = app packages.forgelm-cuda;
      };

      devShells.${system} = {
        default = packages.shell;
        cuda = packages.shell-cuda;
      };

      checks.${system} = packages.checks;

      nixosModules.default = import ./containers/nix/module.nix {
        inherit (self) packages;
        inherit pins;
      };

      # What each image declares, as plain data: to be looked at without building anything.
      lib.imageConfig = {
        cpu = packages.image.passthru.imageConfig;
        cuda = packages.image-cuda.passthru.imageConfig;
      };
    };
}
