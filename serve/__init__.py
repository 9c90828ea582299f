"""The HTTP service over asr.recognizer."""
