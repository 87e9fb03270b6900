"""The thinker of MiniCPM-o 4.5: hears and sees a session unit by unit, decides whether to speak, and writes."""
