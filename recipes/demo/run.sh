#!/usr/bin/env bash
# The main job on the synthetic corpus, from nothing to text. Run again, it continues where it was.
#   recipes/demo/run.sh [ASR]        ASR: the `asr` command, default: the one on the PATH
set -euo pipefail
cd "$(dirname "$0")/../.."
asr=${1:-asr}

# Two processes with a thread each, which share the batches, are faster than one with two threads.
train=("$asr" train)
torchrun=$(dirname "$(command -v "$asr")")/torchrun
if [ -x "$torchrun" ] && [ "$(nproc 2> /dev/null || echo 1)" -ge 2 ]; then
  train=(env OMP_NUM_THREADS=1 "$torchrun" --standalone --nproc-per-node 2 -m asr.cli train)
  train+=(--set data.batch_seconds=18)  # as many seconds a step
fi

"$asr" prepare demo data/demo
"${train[@]}" recipes/demo/lrt.yaml --resume
"$asr" evaluate exp/demo/lrt data/demo/test.jsonl.gz --worst 3
wav=$(find data/demo/wav/test -name '*.wav' | sort | sed -n 1p)
echo "transcript of $wav (synthetic speech of an unseen voice):"
"$asr" transcribe exp/demo/lrt "$wav"
