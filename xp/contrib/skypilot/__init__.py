"""SkyPilot's managed jobs, on one machine or several."""
