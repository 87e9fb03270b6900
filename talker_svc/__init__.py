"""Speech from text: clauses, pronunciation and latents of the stage `talker`."""
