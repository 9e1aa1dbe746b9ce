"""What training minimises beside the task: conditional entropy losses, and rival defences."""
