"""What a topic keeps and what it deletes: `TopicRetention` decides, `SegmentDeletion` deletes."""
