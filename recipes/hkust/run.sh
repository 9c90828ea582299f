#!/usr/bin/env bash
# The four commands on HKUST, for one of the recipes here. Run again, it continues where it was.
#   recipes/hkust/run.sh MODEL [CORPUS_DIR [TRAIN_OPTION...]]      MODEL such as lrt_r50
# CORPUS_DIR: the folder that holds LDC2005S15 and LDC2005T32; "" once data/hkust is prepared.
# ASR: the `asr` command, default: the one on the PATH.
set -euo pipefail
model=${1:?usage: recipes/hkust/run.sh MODEL [CORPUS_DIR [TRAIN_OPTION...]]}
corpus=${2:+$(realpath "$2")} asr=${ASR:-asr} test=data/hkust/test.jsonl.gz
cd "$(dirname "$0")/../.."

[ -z "$corpus" ] || "$asr" prepare hkust "$corpus" data/hkust
"$asr" train "recipes/hkust/$model.yaml" --resume "${@:3}"
"$asr" evaluate "exp/hkust/$model" "$test" --worst 3
recording=$(zcat "$test" | sed -n '1s/.*"source": *"\([^"]*\)".*/\1/p')
echo "transcript of $recording:"
"$asr" transcribe "exp/hkust/$model" "$recording"
