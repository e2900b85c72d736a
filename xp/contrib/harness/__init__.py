"""Agent programs as players: a program asks an endpoint for its model's messages, and the policy answers."""
