"""Stages that understand: `asr` and `llm`."""
