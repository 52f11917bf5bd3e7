# The functions of nixpkgs' lib that ForgeLM's flake uses, written anew from their documentation.
let
  inherit (builtins)
    attrNames
    compareVersions
    concatStringsSep
    filter
    functionArgs
    genList
    head
    isAttrs
    isBool
    isFunction
    isList
    isString
    listToAttrs
    match
    replaceStrings
    split
    stringLength
    substring
    ;
  lower = "abcdefghijklmnopqrstuvwxyz";
  upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  letters = text: genList (at: substring at 1 text) (stringLength text);
in
rec {
  inherit (builtins)
    all
    concatStringsSep
    elem
    replaceStrings
    substring
    ;

  toLower = replaceStrings (letters upper) (letters lower);
  toUpper = replaceStrings (letters lower) (letters upper);
  splitString = by: text: filter isString (split (replaceStrings [ "." ] [ "\\." ] by) text);
  hasInfix = part: text: replaceStrings [ part ] [ "" ] text != text;
  hasSuffix =
    end: text:
    let
      size = stringLength text - stringLength end;
    in
    size >= 0 && substring size (-1) text == end;
  versionAtLeast = version: bound: compareVersions version bound >= 0;
  versionOlder = version: bound: compareVersions version bound < 0;
  versions.major = version: head (splitString "." version);

  toList = value: if isList value then value else [ value ];
  optionals = wanted: list: if wanted then list else [ ];
  optionalString = wanted: text: if wanted then text else "";
  optionalAttrs = wanted: set: if wanted then set else { };
  mapAttrs' = function: set: listToAttrs (map (name: function name set.${name}) (attrNames set));

  # Typed as nixpkgs' are, so that a string where a bool belongs is noticed here as well.
  cmakeBool =
    name: value:
    assert isString name && isBool value;
    "-D${name}:BOOL=${if value then "TRUE" else "FALSE"}";
  cmakeFeature =
    name: value:
    assert isString name && isString value;
    "-D${name}:STRING=${value}";

  getLib = package: package.lib or package;

  makeOverridable =
    function: given:
    let
      made = function given;
    in
    if isAttrs made then
      made // { override = changed: makeOverridable function (given // changed); }
    else
      made;

  callPackageWith =
    scope: file: given:
    let
      function = if isFunction file then file else import file;
      asked = functionArgs function;
      found = builtins.intersectAttrs asked scope;
      missing = filter (name: !asked.${name} && !(found ? ${name}) && !(given ? ${name})) (attrNames asked);
    in
    if missing != [ ] then
      throw "${toString file}: nothing provides ${concatStringsSep ", " missing}"
    else
      makeOverridable function (found // given);

  licenses = {
    asl20 = {
      free = true;
      shortName = "asl20";
    };
    nvidiaCudaRedist = {
      free = false;
      shortName = "CUDA EULA";
    };
    mit = {
      free = true;
      shortName = "mit";
    };
  };

  inherit (import ./modules.nix)
    evalModules
    mkEnableOption
    mkIf
    mkOption
    types
    ;
}
