# The program: one Python with ForgeLM and everything it imports, and the `forgelm` command.
{
  lib,
  stdenv,
  python,
  runCommand,
  writeShellApplication,
  symlinkJoin,
  coreutils,
  fetchPypi,
  autoPatchelfHook,
  pins,
  version,
  bindings,
}:
let
  inherit (bindings) engine;

  packages = import ./python.nix {
    inherit
      lib
      python
      fetchPypi
      autoPatchelfHook
      stdenv
      pins
      bindings
      ;
  };

  # Each by itself: a change to the tests or to a document is no reason to build anything again.
  profiles = builtins.path {
    path = ../../profiles;
    name = "forgelm-profiles";
  };
  source = builtins.path {
    path = ../../forgelm;
    name = "forgelm-source";
  };
  # They go wherever the program goes, into images too.
  license = builtins.path { path = ../../LICENSE; };
  notices = builtins.path { path = ../../THIRD_PARTY_NOTICES; };

  module = python.pkgs.toPythonModule (
    runCommand "forgelm-module-${version}" { } ''
      mkdir -p $out/${python.sitePackages}
      cp -r ${source} $out/${python.sitePackages}/forgelm
      install -D -m 444 ${license} $out/share/doc/forgelm/LICENSE
      install -D -m 444 ${notices} $out/share/doc/forgelm/THIRD_PARTY_NOTICES
    ''
  );
  runtime = python.withPackages (_: packages ++ [ module ]);

  hostDriver = writeShellApplication {
    name = "forgelm-host-driver";
    runtimeInputs = [ coreutils ];
    text = builtins.readFile ./host-driver.sh;
  };

  # Packages of the user's own Python (~/.local) must not be mixed with these.
  environment = ''
    export PYTHONNOUSERSITE=1
    export FORGELM_PROFILES="''${FORGELM_PROFILES:-${profiles}}"
  ''
  + lib.optionalString engine.cudaSupport ''
    driver="$(${hostDriver}/bin/forgelm-host-driver)"
    if [ -n "$driver" ]; then
      export LD_LIBRARY_PATH="$driver''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
  '';

  command = writeShellApplication {
    name = "forgelm";
    text = ''
      ${environment}
      exec ${runtime}/bin/python3 -m forgelm "$@"
    '';
  };
  # `nix run .` serves, with flags of `forgelm serve` after `--`; other commands are there too (`nix run . -- doctor`).
  serve = writeShellApplication {
    name = "forgelm-serve";
    text = ''
      case "''${1:-}" in
        "" | -*) set -- serve "$@" ;;
      esac
      exec ${command}/bin/forgelm "$@"
    '';
  };
in
symlinkJoin {
  name = "forgelm${lib.optionalString engine.cudaSupport "-cuda"}-${version}";
  paths = [
    command
    serve
  ];
  passthru = {
    inherit
      command
      engine
      hostDriver
      module
      packages
      profiles
      runtime
      version
      ;
  };
  meta = {
    description = "A local inference server with an OpenAI-compatible API";
    license = lib.licenses.asl20;
    mainProgram = "forgelm";
    platforms = [ "x86_64-linux" ];
  };
}
