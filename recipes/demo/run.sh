#!/usr/bin/env bash
# The main job on the synthetic corpus, from nothing to text. Run again, it continues where it was.
#   recipes/demo/run.sh [ASR]        ASR: the `asr` command, default: the one on the PATH
set -euo pipefail
cd "$(dirname "$0")/../.."
asr=${1:-asr}

# On a CPU two processes with a thread each, which share the batches, are faster than two threads.
train=("$asr" train)
python=$(dirname "$(readlink -f "$(command -v "$asr")")")/python
count='import torch; from asr.runtime.threads import choose_threads
print(1 if torch.cuda.is_available() else choose_threads().number)'
if [ "$("$python" -c "$count" 2> /dev/null || echo 1)" -ge 2 ]; then
  train=(env OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --standalone --nproc-per-node 2)
  train+=(-m asr.cli train --set data.batch_seconds=18)  # as many seconds a step
fi

"$asr" prepare demo data/demo
"${train[@]}" recipes/demo/lrt.yaml --resume
"$asr" evaluate exp/demo/lrt data/demo/test.jsonl.gz --worst 3
wav=$(find data/demo/wav/test -name '*.wav' | sort | sed -n 1p)
echo "transcript of $wav (synthetic speech of an unseen voice):"
"$asr" transcribe exp/demo/lrt "$wav"
