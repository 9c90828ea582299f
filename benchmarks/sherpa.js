// Runs a model in sherpa-onnx's WebAssembly: node sherpa.js CONFIG RATE IS_ONLINE FILE..., where
// CONFIG is the JSON of its configuration and each FILE holds samples as float32. Prints the texts
// and the seconds of the processor as JSON.

const fs = require('fs');
const sherpa = require('sherpa-onnx');

const [config, rate, isOnline, ...files] = process.argv.slice(2);
const make = isOnline === 'true' ? sherpa.createOnlineRecognizer : sherpa.createOfflineRecognizer;
const recognizer = make(JSON.parse(config));

function textOf(wave) {
  const stream = recognizer.createStream();
  stream.acceptWaveform(Number(rate), wave);
  if (isOnline === 'true') while (recognizer.isReady(stream)) recognizer.decode(stream);
  else recognizer.decode(stream);
  const { text } = recognizer.getResult(stream);
  stream.free();
  return text;
}

const before = process.cpuUsage();
const texts = files.map((file) => textOf(new Float32Array(new Uint8Array(fs.readFileSync(file)).buffer)));
const { user, system } = process.cpuUsage(before);
console.log(`found ${JSON.stringify({ texts, seconds: (user + system) / 1e6 })}`);
