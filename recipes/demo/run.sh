#!/usr/bin/env bash
# The main job on the synthetic corpus, from nothing to text. Run again, it continues where it was.
#   recipes/demo/run.sh [ASR]        ASR: the `asr` command, default: the one on the PATH
set -euo pipefail
cd "$(dirname "$0")/../.."
asr=${1:-asr}

"$asr" prepare demo data/demo
"$asr" train recipes/demo/lrt.yaml --resume
"$asr" evaluate exp/demo/lrt data/demo/test.jsonl.gz --worst 3
wav=$(find data/demo/wav/test -name '*.wav' | sort | sed -n 1p)
echo "transcript of $wav (synthetic speech of an unseen voice):"
"$asr" transcribe exp/demo/lrt "$wav"
