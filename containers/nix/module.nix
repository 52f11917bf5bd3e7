# services.forgelm on NixOS: one unit, a user of its own, state below /var/lib/forgelm.
{ packages, pins }:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.forgelm;
  inherit (lib)
    mkEnableOption
    mkIf
    mkOption
    types
    ;

  state = "/var/lib/forgelm";
  cuda = cfg.package.engine.cudaSupport or false;
  ownModels = cfg.modelsDir != "${state}/models";

  # The flags of `forgelm serve` as its source has them: a misspelt setting would be a variable that nobody reads.
  flags = builtins.readFile ../../forgelm/commands/serve_options.py;
  given = builtins.attrNames cfg.settings;
  unknown = builtins.filter (name: !(lib.hasInfix "_env(\"${variable name}\")" flags)) given;
  # These have options of their own, and a key doesn't belong in the store.
  taken = builtins.filter (
    name:
    lib.elem (variable name) [
      "API_KEY"
      "API_KEY_FILE"
      "HOST"
      "PORT"
      "PROFILE"
    ]
  ) given;

  variable = name: lib.toUpper (lib.replaceStrings [ "-" ] [ "_" ] name);
  # As JSON where `toString` would lose something: it writes 1 and nothing for booleans, and six digits of a fraction.
  text = value: if builtins.isString value then value else builtins.toJSON value;
  # systemd reads % as the start of a specifier.
  literal = lib.replaceStrings [ "%" ] [ "%%" ];
in
{
  options.services.forgelm = {
    enable = mkEnableOption "ForgeLM, a local inference server";

    package = mkOption {
      type = types.package;
      default = packages.${pkgs.stdenv.hostPlatform.system}.forgelm;
      defaultText = "the flake's forgelm, for processors alone";
      description = "What runs. The flake's forgelm-cuda uses NVIDIA cards; the machine needs their driver then.";
    };

    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Address to listen on; 0.0.0.0 is every one.";
    };

    port = mkOption {
      type = types.port;
      default = pins.server.port;
      description = "Port to listen on.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether other machines may reach the port. Set apiKeyFile as well.";
    };

    profile = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "turbo_4b";
      description = "Profile to serve: a name, or a file. Without one, the largest installed model that fits.";
    };

    settings = mkOption {
      type = types.attrsOf (
        types.oneOf [
          types.bool
          types.int
          types.float
          types.str
        ]
      );
      default = { };
      example = {
        context = 16384;
        idle_seconds = 600;
        on_request = true;
      };
      description = "Flags of `forgelm serve` by their long names, with _ or -. Unknown ones are refused.";
    };

    environmentFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/forgelm.env";
      description = "File of variables that don't belong in the store, such as HF_TOKEN.";
    };

    apiKeyFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/forgelm-keys";
      description = "File with one API key per line; it may be readable by root alone.";
    };

    modelsDir = mkOption {
      type = types.path;
      default = "${state}/models";
      description = ''
        Where models are. A directory of your own must be there, be readable by the user forgelm, and be writable for
        it if models are to be fetched into it. It may lie below /home, of which the server sees nothing else.
      '';
    };
  };

  config = mkIf cfg.enable {
    assertions = [
      {
        assertion = unknown == [ ];
        message = "services.forgelm.settings: `forgelm serve` has no ${lib.concatStringsSep ", " unknown}";
      }
      {
        assertion = taken == [ ];
        message = "services.forgelm.settings: ${lib.concatStringsSep ", " taken}: use the option of that name (apiKeyFile for keys)";
      }
    ];

    users.users.forgelm = {
      isSystemUser = true;
      group = "forgelm";
      home = state;
    };
    users.groups.forgelm = { };

    networking.firewall.allowedTCPPorts = mkIf cfg.openFirewall [ cfg.port ];
    environment.systemPackages = [ cfg.package ];

    systemd.services.forgelm = {
      description = "ForgeLM inference server";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" ];

      environment = {
        HOME = state;
        XDG_CACHE_HOME = "/var/cache/forgelm";
        XDG_CONFIG_HOME = "${state}/config";
        XDG_DATA_HOME = "${state}/data";
        XDG_STATE_HOME = "${state}/state";
        XDG_RUNTIME_DIR = "/run/forgelm";
        FORGELM_HOST = cfg.host;
        FORGELM_PORT = toString cfg.port;
        FORGELM_DRAIN_SECONDS = "40";
        FORGELM_MODELS = literal (toString cfg.modelsDir);
      }
      // lib.optionalAttrs (cfg.profile != null) { FORGELM_PROFILE = literal cfg.profile; }
      // lib.optionalAttrs (cfg.apiKeyFile != null) { FORGELM_API_KEY_FILE = "%d/api-keys"; }
      // lib.optionalAttrs cuda { CUDA_CACHE_PATH = "/var/cache/forgelm/cuda"; }
      // lib.mapAttrs' (name: value: {
        name = "FORGELM_${variable name}";
        value = literal (text value);
      }) cfg.settings;

      serviceConfig = {
        ExecStart = "${cfg.package}/bin/forgelm serve";
        # The server says itself when it is ready, and what it is loading until then.
        Type = "notify";
        NotifyAccess = "main";
        TimeoutStartSec = "infinity";
        WatchdogSec = 60;
        # SIGTERM goes to the server alone, which lets requests finish and ends its processes.
        KillMode = "mixed";
        TimeoutStopSec = 45;
        Restart = "on-failure";
        RestartSec = 5;
        # A setting that is wrong stays wrong.
        RestartPreventExitStatus = 2;

        User = "forgelm";
        Group = "forgelm";
        UMask = "0027";
        WorkingDirectory = state;
        StateDirectory = "forgelm";
        StateDirectoryMode = "0750";
        CacheDirectory = "forgelm";
        RuntimeDirectory = "forgelm";
        LimitMEMLOCK = "infinity";

        # The machine's files are read-only, and of /home there is the models' directory or nothing.
        ProtectSystem = "strict";
        ProtectHome = "tmpfs";
        PrivateTmp = true;
        ProtectClock = true;
        ProtectControlGroups = true;
        ProtectHostname = true;
        ProtectKernelLogs = true;
        ProtectKernelModules = true;
        ProtectKernelTunables = true;
        ProtectProc = "invisible";
        NoNewPrivileges = true;
        CapabilityBoundingSet = "";
        LockPersonality = true;
        RemoveIPC = true;
        RestrictNamespaces = true;
        RestrictRealtime = true;
        RestrictSUIDSGID = true;
        RestrictAddressFamilies = [
          "AF_INET"
          "AF_INET6"
          "AF_NETLINK"
          "AF_UNIX"
        ];
        SystemCallArchitectures = "native";
        SystemCallFilter = [
          "@system-service"
          "~@privileged"
        ];
        SystemCallErrorNumber = "EPERM";
      }
      // (
        if cuda then
          {
            # PrivateDevices would hide the card.
            DevicePolicy = "closed";
            DeviceAllow = [
              "char-nvidia* rw"
              "/dev/nvidiactl rw"
              "/dev/nvidia-uvm rw"
              "/dev/nvidia-uvm-tools rw"
            ];
            SupplementaryGroups = [
              "render"
              "video"
            ];
          }
        else
          { PrivateDevices = true; }
      )
      // lib.optionalAttrs ownModels {
        BindPaths = [ (literal (toString cfg.modelsDir)) ];
        ReadWritePaths = [ (literal (toString cfg.modelsDir)) ];
      }
      // lib.optionalAttrs (cfg.environmentFile != null) { EnvironmentFile = toString cfg.environmentFile; }
      // lib.optionalAttrs (cfg.apiKeyFile != null) { LoadCredential = "api-keys:${toString cfg.apiKeyFile}"; };
    };
  };
}
