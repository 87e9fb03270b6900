"""Who may come in: keys and where they are kept, client secrets, origins, addresses, and how often somebody may try."""
