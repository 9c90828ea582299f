"""The HTTP service over asr.transcription.recognizer."""
