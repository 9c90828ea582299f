// The page's sentences in English and Chinese. The English sentence is the key; the language is
// the browser's, or the one that the address names: #en, #zh.

const CHINESE = {
  "Transcribe speech · lrt-asr": "语音转文字 · lrt-asr",
  "Speech to text, on this machine": "本机语音转文字",
  "Model": "模型",
  "Recording": "录音",
  "Drop recordings here": "把录音拖到这里",
  "wav, flac, ogg or mp3": "wav、flac、ogg 或 mp3",
  "Choose files": "选择文件",
  "Record": "开始录音",
  "Stop": "停止",
  "Loudness": "音量",
  "Recording…": "正在录音…",
  "This service requires a key": "此服务需要密钥",
  "Use it": "使用",
  "Cancel": "取消",
  "Recordings": "录音列表",
  "Progress": "进度",
  "Playback": "播放",
  "Play": "播放",
  "Pause": "暂停",
  "Position": "位置",
  "Transcript": "文字",
  "Save": "保存",
  "Save the recording": "保存录音",
  "Copy": "复制",
  "Click a word to play it; with the keyboard, arrows move and Enter plays.":
    "点击文字即从该处播放；也可用方向键移动，回车播放。",
  "Other hypotheses": "其他候选",
  "Text": "文字",
  "Score": "得分",
  "API": "接口文档",
  "The service stores no recordings.": "服务不保存录音。",
  "Recordings do not leave this page.": "录音不会离开本页面。",
  "{0} holds no audio at all: record it again": "{0} 中没有任何音频：请重新录制",
  "{0} holds samples that are NaN or infinite: record or export it again":
    "{0} 含有无效的采样值：请重新录制或导出",
  "{0} is not a recording that this browser reads: give wav, flac, ogg or mp3":
    "{0} 不是此浏览器能读取的录音：请使用 wav、flac、ogg 或 mp3",
  "No speech.": "没有语音。",
  "(nothing)": "（无）",
  "waiting": "等待中",
  "cancelled": "已取消",
  "failed": "失败",
  "Cancelled.": "已取消。",
  "Copied.": "已复制。",
  "Finishing…": "正在完成…",
  "Transcribing {0}…": "正在转写 {0}…",
  "{0} of audio transcribed.": "已转写 {0} 的录音。",
  "{0} of {1}": "{0} / {1}",
  "{0}, confidence {1} %": "{0}，置信度 {1}%",
  "{0}. The whole recording is transcribed when you stop.": "{0}。停止后将转写整段录音。",
  "The browser does not let this page copy: save the txt file instead.":
    "浏览器不允许复制：请保存 txt 文件。",
  "The service cannot be reached: is it still running?": "无法连接服务：它还在运行吗？",
  "the service answered {0} without a reason": "服务返回 {0}，未说明原因",
  "the live connection was lost": "实时连接已断开",
  "The microphone is not allowed: permit it for this page and try again.":
    "麦克风未获授权：请允许本页面使用后重试。",
  "There is no microphone: plug one in, or choose a file.": "没有麦克风：请接入麦克风或选择文件。",
  "The microphone is in use by another program.": "麦克风正被其他程序使用。",
  "Browsers offer the microphone to https and localhost only: choose a file.":
    "浏览器仅在 https 和 localhost 下开放麦克风：请选择文件。",
  "The microphone cannot be opened: {0}": "无法打开麦克风：{0}",
  "This browser cannot record: {0}": "此浏览器无法录音：{0}",
  "This browser cannot recognize: {0}": "此浏览器无法识别：{0}",
};

let chinese = false;
const sources = new Map(); // from text nodes and attributes of the page to their English

/** A sentence in the page's language, with {0}, {1}, … replaced by the values. */
export function t(english, ...values) {
  const sentence = (chinese && CHINESE[english]) || english;
  return sentence.replace(/\{(\d)\}/g, (_, i) => values[i]);
}

/** Choose the language and translate the page. */
export function translate() {
  chinese = (location.hash.slice(1) || navigator.language).startsWith("zh");
  document.documentElement.lang = chinese ? "zh-CN" : "en";
  if (!sources.size) collect();
  for (const [node, english] of sources) node.nodeValue = t(english);
}

function collect() {
  const found = document.evaluate(
    "//text()[normalize-space()] | //@aria-label", document, null,
    XPathResult.ORDERED_NODE_SNAPSHOT_TYPE,
  );
  for (let i = 0; i < found.snapshotLength; i++) {
    const node = found.snapshotItem(i);
    if (node.nodeValue in CHINESE) sources.set(node, node.nodeValue);
  }
}
