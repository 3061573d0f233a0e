"""What a round costs beside a bare loop, whether memory grows, and where a second-order step spends its time."""
