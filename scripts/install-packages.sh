#!/bin/sh
# Installs the packages named in packages.txt that are not installed yet. Alternatives ("a|b") take the first
# one the distribution has. Does nothing, and needs no root, when everything is there.
set -eu
list="$(dirname "$0")/packages.txt"
installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

missing=""
for entry in $(sed -e 's/#.*//' "$list" | awk 'NF {print $1}'); do
  found=""
  for name in $(echo "$entry" | tr '|' ' '); do
    if installed "$name"; then found=yes; fi
  done
  [ -n "$found" ] || missing="$missing $entry"
done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || { echo "error: these packages are missing and apt-get is not here:$missing" >&2; exit 1; }
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
chosen=""
for entry in $missing; do
  pick=""
  for name in $(echo "$entry" | tr '|' ' '); do
    if [ -z "$pick" ] && apt-cache show "$name" >/dev/null 2>&1; then pick=$name; fi
  done
  [ -n "$pick" ] || { echo "error: no package called $entry here" >&2; exit 1; }
  chosen="$chosen $pick"
done
echo "installing:$chosen"
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $chosen >/dev/null
