# As much of nixpkgs' module system as judges one module: options with types and defaults, mkIf, and values refused.
# Values aren't merged: one module defines, another one (`given`) sets options.
let
  inherit (builtins)
    all
    any
    attrNames
    concatStringsSep
    elem
    filter
    isAttrs
    isBool
    isFloat
    isInt
    isList
    isPath
    isString
    listToAttrs
    mapAttrs
    substring
    ;

  type = name: check: { inherit name check; };

  types = rec {
    bool = type "boolean" isBool;
    int = type "signed integer" isInt;
    float = type "floating point number" isFloat;
    str = type "string" isString;
    port = type "16 bit unsigned integer; between 0 and 65535" (value: isInt value && 0 <= value && value <= 65535);
    path = type "absolute path" (value: isPath value || (isString value && substring 0 1 value == "/"));
    package = type "package" (value: isAttrs value && value.type or "" == "derivation");
    nullOr = of: type "null or ${of.name}" (value: value == null || of.check value);
    oneOf = of: type (concatStringsSep " or " (map (one: one.name) of)) (value: any (one: one.check value) of);
    attrsOf =
      of:
      type "attribute set of (${of.name})" (
        value: isAttrs value && all (name: of.check value.${name}) (attrNames value)
      );
  };

  isOption = value: value._type or "" == "option";

  # One option's value, or what nixpkgs says about a bad one.
  settle =
    path: option: given:
    let
      value = if given != null then given.value else option.default or (throw "The option `${path}' has no value");
    in
    if option.type.check value then
      value
    else
      throw "A definition for option `${path}' is not of type `${option.type.name}'.";

  walk =
    path: options: given:
    let
      stray = filter (name: !(options ? ${name})) (attrNames given);
    in
    if stray != [ ] then
      throw "The option `${path}${concatStringsSep ", " stray}' does not exist."
    else
      mapAttrs (
        name: option:
        if isOption option then
          settle "${path}${name}" option (if given ? ${name} then { value = given.${name}; } else null)
        else
          walk "${path}${name}." option (given.${name} or { })
      ) options;

  # Definitions with the conditional ones taken in or left out.
  discharge =
    value:
    if value._type or "" == "if" then
      (if value.condition then discharge value.content else null)
    else if isAttrs value && value.type or "" != "derivation" then
      listToAttrs (
        filter (entry: entry.value != null) (
          map (name: {
            inherit name;
            value = discharge value.${name};
          }) (attrNames value)
        )
      )
    else
      value;
in
{
  inherit types;
  mkOption = option: { _type = "option"; } // option;
  mkEnableOption = what: {
    _type = "option";
    type = types.bool;
    default = false;
    description = "Whether to enable ${what}.";
  };
  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };

  # { options set; definitions made } of one module under these settings.
  evalModules =
    {
      module,
      given,
      lib,
      pkgs,
    }:
    let
      made = module { inherit config lib pkgs; };
      config = walk "" made.options given;
    in
    {
      inherit config;
      definitions = discharge made.config;
    };
}
