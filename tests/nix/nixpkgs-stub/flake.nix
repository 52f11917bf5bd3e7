{
  description = "What the flake at the top uses of nixpkgs, for checks without a network (see ../README.md)";

  outputs = _: {
    lib = import ./lib.nix;
  };
}
