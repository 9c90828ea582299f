"""Export a recognizer as ONNX or torch graphs."""
