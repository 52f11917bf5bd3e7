# nixpkgs' `allowUnfreePredicate`: free packages, and those under the licences of CUDA's redistributable parts.
{ lib }:
package:
lib.all (licence: (licence.free or true) || lib.elem (licence.shortName or "") [ "CUDA EULA" ]) (
  lib.toList (package.meta.license or [ ])
)
