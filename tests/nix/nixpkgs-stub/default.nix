# `import nixpkgs { … }` of the stub. Derivations are real, so that Nix follows every reference in them; of all of them
# only fetchPypi's and the engine's can be built.
{
  system,
  config ? { },
}:
let
  lib = import ./lib.nix;
  inherit (builtins)
    attrNames
    filter
    elem
    fromJSON
    isFunction
    mapAttrs
    readFile
    ;

  known = [
    "allowUnfree"
    "allowUnfreePredicate"
    "cudaCapabilities"
    "cudaForwardCompat"
    "cudaSupport"
  ];
  stray = filter (name: !(elem name known)) (attrNames config);

  permitted =
    package:
    lib.all (licence: licence.free) (lib.toList (package.meta.license or [ ]))
    || (config.allowUnfree or false)
    || (config.allowUnfreePredicate or (_: false)) package;

  mkDerivation =
    given:
    let
      name = given.name or "${given.pname}-${given.version}";
      kept = builtins.removeAttrs given [
        "env"
        "meta"
        "passthru"
      ];
      made = derivation (
        kept
        // (given.env or { })
        // {
          inherit name system;
          builder = "/bin/bash";
          args = given.args or [ ./build.sh ];
        }
      );
    in
    if permitted given then
      made
      // kept
      // {
        inherit name;
        meta = given.meta or { };
        passthru = given.passthru or { };
      }
      // (given.passthru or { })
    else
      throw "unfree package ${name} refused";

  # A program or library of nixpkgs: nothing, since this machine's own do the work.
  thing =
    name:
    mkDerivation {
      inherit name;
      args = [
        "-c"
        # bash must be the last to end: Nix kills what still runs when the last one closes its output.
        "/bin/mkdir $out; exit 0"
      ];
    };

  # Arguments as documented: an unknown one is an error of evaluation in nixpkgs, too.
  runCommand = name: env: buildCommand: mkDerivation ({ inherit name buildCommand; } // env);
  writeShellApplication =
    {
      name,
      text,
      runtimeInputs ? [ ],
      runtimeEnv ? null,
      passthru ? { },
      meta ? { },
    }:
    mkDerivation {
      inherit
        name
        text
        runtimeInputs
        passthru
        meta
        ;
    };
  symlinkJoin =
    {
      name,
      paths,
      postBuild ? "",
      passthru ? { },
      meta ? { },
    }:
    mkDerivation {
      inherit
        name
        paths
        postBuild
        passthru
        meta
        ;
    };

  fetchPypi =
    {
      pname,
      version,
      sha256,
      format ? "setuptools",
      dist ? "py2.py3",
      python ? "py2.py3",
      abi ? "none",
      platform ? "any",
    }:
    derivation {
      name =
        if format == "wheel" then
          "${pname}-${version}-${python}-${abi}-${platform}.whl"
        else
          "${pname}-${version}.tar.gz";
      inherit system;
      builder = "/bin/bash";
      args = [ ./fetch.sh ];
      outputHashAlgo = "sha256";
      outputHashMode = "flat";
      outputHash = sha256;
      impureEnvVars = [ "FORGELM_SDIST_DIR" ];
    };

  python313 = thing "python3" // {
    sitePackages = "lib/python3.13/site-packages";
    withPackages =
      choose:
      mkDerivation {
        name = "python3-env";
        packages = choose python313.pkgs;
      };
    pkgs =
      mapAttrs (
        pname: version:
        mkDerivation {
          inherit pname version;
        }
      ) (fromJSON (readFile ./python.json))
      // {
        toPythonModule = package: package;
        buildPythonPackage =
          {
            pname,
            version,
            src,
            pyproject ? null,
            format ? null,
            nativeBuildInputs ? [ ],
            buildInputs ? [ ],
            build-system ? [ ],
            dontUseCmakeConfigure ? false,
            dontCheckRuntimeDeps ? false,
            env ? { },
            postInstall ? "",
            doCheck ? true,
            passthru ? { },
            meta ? { },
          }@given:
          # nixpkgs wants one of them said.
          assert (pyproject == null) != (format == null);
          mkDerivation given;
      };
  };

  # As in nixpkgs since 25.11: CUDA is all or nothing.
  cudaPart =
    name:
    if !(config.cudaSupport or false) then
      throw "${name}: CUDA without config.cudaSupport is unsupported"
    else
      mkDerivation {
        inherit name;
        meta.license = lib.licenses.nvidiaCudaRedist;
      };

  pkgs = {
    inherit
      config
      fetchPypi
      lib
      python313
      runCommand
      symlinkJoin
      writeShellApplication
      ;
    stdenv = {
      inherit mkDerivation;
      cc.cc.lib = thing "gcc-lib";
      hostPlatform = { inherit system; };
    };
    cudaPackages_13_0 = {
      backendStdenv = { inherit mkDerivation; };
      cuda_nvcc = cudaPart "cuda_nvcc";
      cuda_cudart = cudaPart "cuda_cudart";
      libcublas = cudaPart "libcublas";
      cccl = cudaPart "cccl";
    };
    mkShell = given: mkDerivation ({ name = "nix-shell"; } // given);
    fakeNss =
      lib.makeOverridable
        (
          {
            extraPasswdLines ? [ ],
            extraGroupLines ? [ ],
          }:
          mkDerivation {
            name = "fake-nss";
            inherit extraPasswdLines extraGroupLines;
          }
        )
        { };
    dockerTools = {
      caCertificates = thing "ca-certificates";
      streamLayeredImage =
        {
          name,
          tag ? null,
          config ? { },
          contents ? [ ],
          maxLayers ? 100,
          extraCommands ? "",
          fakeRootCommands ? "",
          passthru ? { },
        }:
        mkDerivation {
          name = "stream-${name}";
          config = builtins.toJSON config;
          inherit
            contents
            extraCommands
            fakeRootCommands
            maxLayers
            ;
          passthru = passthru // {
            imageTag = tag;
          };
        };
    };
  }
  // builtins.listToAttrs (
    map
      (name: {
        inherit name;
        value = thing name;
      })
      [
        "autoAddDriverRunpath"
        "autoPatchelfHook"
        "cmake"
        "coreutils"
        "ninja"
        "ruff"
        "skopeo"
      ]
  );
in
if stray != [ ] then throw "nixpkgs has no config ${lib.concatStringsSep ", " stray}" else pkgs
