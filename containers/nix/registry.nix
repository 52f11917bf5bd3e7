# The registry by itself, for a server that is told `--registry-socket`. FORGELM_REGISTRY_SOCKET says where it listens.
{ writeShellApplication, forgelm }:
writeShellApplication {
  name = "forgelm-registry";
  text = ''
    exec ${forgelm}/bin/forgelm registry "$@"
  '';
}
