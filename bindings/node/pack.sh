#!/bin/bash
# Packs the npm package: `pack.sh MODULE OUT`. MODULE is the native module as cargo has built it, OUT a folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
module=$(realpath "$1") out=$(realpath "$2")
package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT

cp -r "$here"/{lib,package.json,README.md} "$here"/../../LICENSE-{APACHE,MIT} "$package"
strip --strip-debug "$module" -o "$package/lib/lockkeeper.$(node -p 'process.platform + "-" + process.arch').node"
cd "$package"
npm pack --silent --pack-destination "$out"
