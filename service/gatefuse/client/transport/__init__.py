"""How the clients' calls reach a server: endpoints, retries, streams. The decisions are pure and shared by both."""
