# The image: streamed, so that no copy of it lies in the store. It has no shell that anything needs.
{
  lib,
  dockerTools,
  fakeNss,
  pins,
  revision,
  version,
  forgelm,
  registry,
}:
let
  inherit (forgelm) engine runtime;
  port = toString pins.server.port;
  state = "/var/lib/forgelm";
  user = "65532";

  imageConfig = {
    Entrypoint = [
      "${runtime}/bin/python3"
      "-m"
      "forgelm"
    ];
    Cmd = [ "serve" ];
    User = "${user}:${user}";
    WorkingDir = state;
    ExposedPorts."${port}/tcp" = { };
    Volumes = {
      "/models" = { };
      ${state} = { };
    };
    StopSignal = "SIGTERM";
    # Times are in nanoseconds. A large model may take minutes to load, which isn't a failure.
    Healthcheck = {
      Test = [
        "CMD"
        "${runtime}/bin/python3"
        "${../ready.py}"
      ];
      Interval = 10 * 1000000000;
      Timeout = 5 * 1000000000;
      StartPeriod = 120 * 1000000000;
      Retries = 3;
    };
    Env = [
      "PATH=/bin"
      "FORGELM_HOST=0.0.0.0"
      "FORGELM_PORT=${port}"
      "FORGELM_MODELS=/models"
      "FORGELM_PROFILES=${forgelm.profiles}"
      "HOME=${state}"
      "XDG_CACHE_HOME=${state}/cache"
      "XDG_CONFIG_HOME=${state}/config"
      "XDG_DATA_HOME=${state}/data"
      "XDG_STATE_HOME=${state}/state"
      "SSL_CERT_FILE=/etc/ssl/certs/ca-bundle.crt"
      "PYTHONDONTWRITEBYTECODE=1"
    ]
    ++ lib.optionals engine.cudaSupport [
      "NVIDIA_VISIBLE_DEVICES=all"
      "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
      # Where the container toolkit puts the host's driver; nothing else lies there.
      "LD_LIBRARY_PATH=/usr/lib64:/usr/lib/x86_64-linux-gnu"
      "CUDA_CACHE_PATH=${state}/cuda"
    ];
    Labels = {
      "org.opencontainers.image.title" = "ForgeLM";
      "org.opencontainers.image.licenses" = "Apache-2.0";
      "org.opencontainers.image.version" = version;
      "org.opencontainers.image.revision" = revision;
      "dev.forgelm.llama-cpp.commit" = engine.commit;
      "dev.forgelm.nixpkgs.commit" = pins.nixpkgs.rev;
    }
    // lib.optionalAttrs engine.cudaSupport {
      "dev.forgelm.cuda.architectures" = engine.architectures;
      "dev.forgelm.cuda.driver" = pins.cuda.driver;
    };
  };
in
dockerTools.streamLayeredImage {
  name = "forgelm";
  tag = version + lib.optionalString engine.cudaSupport "-cuda";
  config = imageConfig;
  contents = [
    forgelm
    registry
    dockerTools.caCertificates
    (fakeNss.override {
      extraPasswdLines = [ "forgelm:x:${user}:${user}:ForgeLM:${state}:/sbin/nologin" ];
      extraGroupLines = [ "forgelm:x:${user}:" ];
    })
  ];
  # A layer for each of the paths that most others need, libc and Python first; ForgeLM itself, which changes most and
  # which nothing needs, comes with the last ones.
  maxLayers = 100;
  fakeRootCommands = ''
    mkdir -p ./models .${state} ./tmp
    chown ${user}:${user} ./models .${state}
    chmod 1777 ./tmp
  '';
  passthru = { inherit imageConfig; };
}
