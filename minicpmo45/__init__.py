"""Facts of MiniCPM-o 4.5 that its thinker, talker and vocoder share: sizes, token ids, checkpoint layout, memory."""
