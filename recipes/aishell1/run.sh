#!/usr/bin/env bash
# The four commands on AiShell-1, for one of the recipes here. Run again, it continues where it was.
#   recipes/aishell1/run.sh MODEL [CORPUS_DIR [TRAIN_OPTION...]]      MODEL such as lrt_r50
# CORPUS_DIR: data_aishell/ or data_aishell.tgz; "" once data/aishell1 is prepared.
# ASR: the `asr` command, default: the one on the PATH.
set -euo pipefail
model=${1:?usage: recipes/aishell1/run.sh MODEL [CORPUS_DIR [TRAIN_OPTION...]]}
corpus=${2:+$(realpath "$2")} asr=${ASR:-asr} test=data/aishell1/test.jsonl.gz
cd "$(dirname "$0")/../.."

[ -z "$corpus" ] || "$asr" prepare aishell1 "$corpus" data/aishell1
"$asr" train "recipes/aishell1/$model.yaml" --resume "${@:3}"
"$asr" evaluate "exp/aishell1/$model" "$test" --worst 3
recording=$(zcat "$test" | sed -n '1s/.*"source": *"\([^"]*\)".*/\1/p')
echo "transcript of $recording:"
"$asr" transcribe "exp/aishell1/$model" "$recording"
