"""Data connections between slots: frames, credit, encryption, the handshake."""
