# For work on ForgeLM: what runs it, what compiles its engine, and what looks at its images.
{
  mkShell,
  ruff,
  skopeo,
  forgelm,
}:
mkShell {
  inputsFrom = [ forgelm.engine ];
  packages = [
    forgelm.runtime
    ruff
    skopeo
  ];
  FORGELM_PROFILES = "${forgelm.profiles}";
}
