"""The listening service: stage `turn` finds where speech starts, pauses and ends."""
