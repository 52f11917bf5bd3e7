# The Python packages of requirements.lock, as a list: nixpkgs' own where they will do, else wheels.
#
# Which are wheels is decided in pins.json (`python.wheels`): what nixpkgs lacks or has too old, and whatever depends on
# one of those, since an environment can't hold two versions of a package. A wheel's version is the lock's and its hash
# is one of the lock's. nixpkgs' versions are compared with pyproject.toml when the flake is evaluated, so that an
# outdated one is a line that says so and not a server that fails at the first request.
{
  lib,
  python,
  fetchPypi,
  autoPatchelfHook,
  stdenv,
  pins,
  bindings,
}:
let
  inherit (builtins)
    attrNames
    filter
    isList
    listToAttrs
    match
    split
    ;
  matches = pattern: text: filter isList (split pattern text);

  # Name to version, of everything that is installed.
  locked = listToAttrs (
    map (found: {
      name = builtins.elemAt found 0;
      value = builtins.elemAt found 1;
    }) (matches "([a-z0-9-]+)==([^ \n]+)" (builtins.readFile ../../requirements.lock))
  );

  # Name to constraints (">=2.4,<3"), of what ForgeLM itself asks for.
  wanted = listToAttrs (
    map (
      requirement:
      let
        parts = match "([A-Za-z0-9_.-]+)([<>=].*)" requirement;
      in
      if parts == null then
        throw "pyproject.toml: ${requirement} isn't understood"
      else
        {
          name = lib.toLower (lib.replaceStrings [ "_" ] [ "-" ] (builtins.elemAt parts 0));
          value = builtins.elemAt parts 1;
        }
    ) (builtins.fromTOML (builtins.readFile ../../pyproject.toml)).project.dependencies
  );

  holds =
    version: constraint:
    let
      parts = match "(>=|==|<)([0-9.]+)" constraint;
      bound = builtins.elemAt parts 1;
    in
    if parts == null then
      throw "pyproject.toml: ${constraint} isn't understood"
    else
      {
        ">=" = lib.versionAtLeast version bound;
        "<" = lib.versionOlder version bound;
        "==" = version == bound;
      }
      .${builtins.elemAt parts 0};

  meets = version: constraints: lib.all (holds version) (lib.splitString "," constraints);

  ofNixpkgs =
    name:
    let
      package = python.pkgs.${name} or (throw "nixpkgs has no Python package ${name}; ${remedy}");
      needs = wanted.${name} or "";
      remedy = "name it in containers/pins.json, python.wheels, and run `make nix-wheels`";
    in
    if needs == "" || meets package.version needs then
      package
    else
      throw "Python package ${name}: nixpkgs has ${package.version}, ForgeLM needs ${needs}; ${remedy}";

  wheel =
    name: { tag, sha256 }:
    let
      parts = lib.splitString "-" tag;
      pure = lib.hasSuffix "-none-any" tag;
    in
    python.pkgs.buildPythonPackage {
      pname = name;
      version = locked.${name};
      format = "wheel";
      src = fetchPypi rec {
        # File names in the index have underscores.
        pname = lib.replaceStrings [ "-" ] [ "_" ] name;
        version = locked.${name};
        format = "wheel";
        dist = python;
        python = builtins.elemAt parts 0;
        abi = builtins.elemAt parts 1;
        platform = builtins.elemAt parts 2;
        inherit sha256;
      };
      # Compiled ones look for their libraries where other distributions have them.
      nativeBuildInputs = lib.optionals (!pure) [ autoPatchelfHook ];
      buildInputs = lib.optionals (!pure) [ stdenv.cc.cc.lib ];
      passthru.tag = tag;
    };

  one =
    name:
    if name == "llama-cpp-python" then
      bindings
    else if pins.python.wheels ? ${name} then
      wheel name pins.python.wheels.${name}
    else
      ofNixpkgs name;
in
map one (attrNames locked)
