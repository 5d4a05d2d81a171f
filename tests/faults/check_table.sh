#!/usr/bin/env bash
# Every test that docs/faults.md names exists: `FILE` "CASE" is a case of tests/FILE.
#   check_table.sh SOURCE_FOLDER
set -uo pipefail
cd "$1" || exit 1
declare -A sources  # on one line each, with strings that the formatter broke put together again
status=0 count=0
while IFS= read -r entry; do
  file=${entry#\`} file=tests/${file%%\`*} title=${entry#*\"}
  [[ -v sources[$file] ]] ||
    sources[$file]=$(tr '\n' ' ' <"$file" | sed 's/"  *"//g; s/TEST_CASE(  */TEST_CASE(/g')
  count=$((count + 1))
  if [[ ${sources[$file]} != *"TEST_CASE(\"$title"* ]]; then
    echo "$file has no case \"$title"
    status=1
  fi
done < <(grep -oE '`[a-z_]+/[a-z_]+\.cpp` "[^"]*"' docs/faults.md)
((count >= 50)) || { echo "only $count tests found in docs/faults.md"; status=1; }
exit $status
