# What `nix flake check` builds: the things that evaluation can't see.
{
  runCommand,
  forgelm,
  registry,
}:
{
  inherit registry;

  # Every package's own requirements, against what is installed beside it.
  requirements = runCommand "forgelm-requirements" { } ''
    ${forgelm.runtime}/bin/python3 ${./requirements.py} ${../../requirements.lock}
    touch $out
  '';

  # The engine is loaded, and a CPU backend found, without a variable that says where.
  engine = runCommand "forgelm-engine" { } ''
    export HOME=$PWD
    ${forgelm}/bin/forgelm version | tee $out
    ${forgelm.runtime}/bin/python3 -c 'from forgelm.llama import lib; lib.start(); print(lib.build_info())' | tee -a $out
    grep -q "CPU :" $out
  '';
}
