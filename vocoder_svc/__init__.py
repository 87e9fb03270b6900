"""Sound from speech latents: the stage `vocoder`."""
