"""Words and hidden states to speech codes: a Llama decoder over pages, batched over sessions, one code a step."""
