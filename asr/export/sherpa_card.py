"""The README of `asr export --format sherpa`, with the calls that load the model."""

import math
from string import Template

from asr.config import Config

_KINDS = {
    # Fields of the configuration in Python (a function), C and Kotlin (with its class), and Node.
    "omnilingual": (
        "from_omnilingual_asr_ctc", "omnilingual", "OfflineOmnilingualAsrCtcModelConfig",
        "omnilingual",
    ),
    "zipformer_ctc": (
        "from_zipformer_ctc", "zipformer_ctc", "OfflineZipformerCtcModelConfig", "zipformerCtc",
    ),
    "zipformer2_ctc": (
        "from_zipformer2_ctc", "zipformer2_ctc", "OnlineZipformer2CtcModelConfig", "zipformer2Ctc",
    ),
}  # fmt: skip


def longest_seconds(config: Config) -> float:
    """Return the most seconds of audio that the attention has weights for, infinity if any.

    One step less is counted, since the graph adds a step.
    """
    steps = config.model.encoder.longest
    return math.inf if steps is None else (steps - 1) * config.step_seconds


def card(kind: str, config: Config, has_int8: bool = False) -> str:
    """Return the README of an exported model; `has_int8`, with `model.int8.onnx` beside it."""
    function, field, kotlin, node = _KINDS[kind]
    features = config.features
    rate = 16000 if kind == "omnilingual" else features.sample_rate
    bins = 80 if kind == "omnilingual" else features.n_freqs
    arguments = "" if kind == "omnilingual" else f",\n    sample_rate={rate}, feature_dim={bins}"
    line, decoding = ("Online", _STREAM) if kind == "zipformer2_ctc" else ("Offline", _RECORDING)
    calls = Template(_CALLS).substitute(
        function=function, field=field, kotlin=kotlin, node=node, rate=rate, bins=bins,
        arguments=arguments, line=line, **decoding,
    )  # fmt: skip
    head = Template(_HEAD).substitute(files=_FILES[has_int8])
    most = min(config.decoding.chunk_seconds or math.inf, longest_seconds(config))
    if line == "Offline" and most < math.inf:
        head += Template(_LENGTH).substitute(seconds=f"{most:g}")
    return head + _NOTES[kind] + (_INT8 if has_int8 else "") + calls


_HEAD = """# A speech recognizer for sherpa-onnx

Written by `asr export --format sherpa` of lrt-asr: $files.
sherpa-onnx decodes it greedily by CTC, without the decoder and the language model of the bundle.
Samples are mono, from -1 to 1; sherpa-onnx converts their rate. A space may begin a text.
Tried in the versions 2.0.1 (Python) and 1.13.8 (Node); the calls in C and Kotlin were read in its
sources and not run.

"""
_LENGTH = """Cut recordings that are longer than $seconds s at silences, as `asr transcribe` does,
for instance by sherpa-onnx's detector of speech (VAD): a model transcribes badly what is longer
than its training utterances. No text is left out for a low confidence.

"""
_FILES = {
    False: "`model.onnx` (float32), `tokens.txt`",
    True: "`model.onnx` (float32), `model.int8.onnx`, `tokens.txt`",
}
_INT8 = """
`model.int8.onnx` computes in 8 bits: give its name in the place of `model.onnx` in any call below.
"""

_NOTES = {
    "omnilingual": """Its kind is `omnilingual`: the graph takes the waveform, and computes the
features of the bundle. sherpa-onnx takes the mean out of the waveform, so that a recording with an
offset may get another text than `asr transcribe` writes. One utterance is decoded at a time.
""",
    "zipformer_ctc": """Its kind is `zipformer_ctc`, for utterances, several at a time
(`decode_streams`).
""",
    "zipformer2_ctc": """Its kind is the online `zipformer2_ctc`, for streams, several at a time
(`decode_streams`). The length of a chunk is fixed. At the end of a stream add a second of silence:
the last chunk must be full.
""",
}

# What differs between utterances and streams.
_RECORDING = {
    "python": """\
stream.accept_waveform(sample_rate, samples)
recognizer.decode_stream(stream)
print(stream.result.text, stream.result.timestamps)""",
    "c": """\
SherpaOnnxAcceptWaveformOffline(stream, sample_rate, samples, n_samples);
SherpaOnnxDecodeOfflineStream(recognizer, stream);
puts(SherpaOnnxGetOfflineStreamResult(stream)->text);""",
    "kotlin_loop": """\
stream.acceptWaveform(samples, sampleRate)
recognizer.decode(stream)""",
    "node_loop": """\
stream.acceptWaveform(sampleRate, samples);
recognizer.decode(stream);""",
}
_STREAM = {
    "python": """\
for samples in blocks:
    stream.accept_waveform(sample_rate, samples)
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    print(recognizer.get_result(stream))""",
    "c": """\
SherpaOnnxOnlineStreamAcceptWaveform(stream, sample_rate, samples, n_samples);  /* each block */
while (SherpaOnnxIsOnlineStreamReady(recognizer, stream))
  SherpaOnnxDecodeOnlineStream(recognizer, stream);
puts(SherpaOnnxGetOnlineStreamResult(recognizer, stream)->text);""",
    "kotlin_loop": """\
stream.acceptWaveform(samples, sampleRate)  // each block
while (recognizer.isReady(stream)) recognizer.decode(stream)""",
    "node_loop": """\
stream.acceptWaveform(sampleRate, samples);  // each block
while (recognizer.isReady(stream)) recognizer.decode(stream);""",
}

_CALLS = """
Python (`pip install sherpa-onnx`):

```python
import sherpa_onnx
recognizer = sherpa_onnx.${line}Recognizer.$function(
    model="model.onnx", tokens="tokens.txt"$arguments)
stream = recognizer.create_stream()
$python
```

C:

```c
SherpaOnnx${line}RecognizerConfig config;
memset(&config, 0, sizeof(config));
config.feat_config.sample_rate = $rate;
config.feat_config.feature_dim = $bins;
config.decoding_method = "greedy_search";
config.model_config.num_threads = 1;
config.model_config.provider = "cpu";
config.model_config.tokens = "tokens.txt";
config.model_config.$field.model = "model.onnx";
const SherpaOnnx${line}Recognizer *recognizer = SherpaOnnxCreate${line}Recognizer(&config);
const SherpaOnnx${line}Stream *stream = SherpaOnnxCreate${line}Stream(recognizer);
$c
```

Android (Kotlin; the files in the assets of the app):

```kotlin
val config = ${line}RecognizerConfig(
    featConfig = FeatureConfig(sampleRate = $rate, featureDim = $bins),
    modelConfig = ${line}ModelConfig(
        $node = $kotlin(model = "model.onnx"), tokens = "tokens.txt"))
val recognizer = ${line}Recognizer(assetManager = application.assets, config = config)
val stream = recognizer.createStream()
$kotlin_loop
println(recognizer.getResult(stream).text)
```

Node (`npm install sherpa-onnx`, WebAssembly):

```js
const sherpa = require('sherpa-onnx');
const recognizer = sherpa.create${line}Recognizer({
  featConfig: {sampleRate: $rate, featureDim: $bins},
  modelConfig: {$node: {model: 'model.onnx'}, tokens: 'tokens.txt'},
});
const stream = recognizer.createStream();
$node_loop
console.log(recognizer.getResult(stream).text);
```
"""
