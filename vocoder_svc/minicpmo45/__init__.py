"""Speech codes to sound: flow matching (conformer and DiT) and HiFT, batched over sessions."""
