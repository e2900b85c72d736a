"""SkyPilot's managed jobs, on a cloud or on Kubernetes."""
