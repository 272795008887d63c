//! Reasons why a guest's port stops, and why packets for a guest are dropped.

segue::reasons! {
    /// Reason for which the connection of a front end was closed. It may connect again.
    pub enum Stop {
        Ended = "stop_ended": "The front end closed the connection.",
        MessageIncomplete = "stop_message_incomplete": "A message was begun and not finished within 5 s, or before the end of the connection.",
        MessageLength = "stop_message_length": "A message of a version other than 1, or with a length that is not that of its kind.",
        MessageDescriptors = "stop_message_descriptors": "A message with more or fewer descriptors than its kind has.",
        MessageUnknown = "stop_message_unknown": "A message that was not offered.",
        ReplyBlocked = "stop_reply_blocked": "The front end does not read the replies.",
        Socket = "stop_socket": "The connection failed.",
        Features = "stop_features": "The front end chose features that were not offered.",
        Migration = "stop_migration": "The front end asked for a log of written memory, as for a live migration, which segue does not have.",
        Iommu = "stop_iommu": "The front end asked for an IOMMU (ACCESS_PLATFORM), which segue does not have.",
        QueueIndex = "stop_queue_index": "A message about a queue past those offered.",
        QueueSize = "stop_queue_size": "A queue size that is 0, no power of two, or above 32768.",
        QueueAddress = "stop_queue_address": "A ring that is not aligned, or not within one region of memory.",
        QueueKick = "stop_queue_kick": "A kick, call or error that is no event counter, or a queue to be polled without a kick.",
        MemoryRegions = "stop_memory_regions": "More than 64 regions of memory, or 128 files of it that went in two minutes, an overlap, or one that is not there.",
        MemoryLength = "stop_memory_length": "A region that its file does not hold or that ends within a huge page, or more than 1 TiB of memory.",
        MemoryFile = "stop_memory_file": "A file of memory that is neither of tmpfs (memfd, /dev/shm) nor of hugetlbfs.",
        MemoryMapping = "stop_memory_mapping": "A region of memory that the kernel refuses to map.",
        MemoryLost = "stop_memory_lost": "A file of memory became shorter while it was used.",
        RingIndex = "stop_ring_index": "The guest's index of a ring lies further ahead than the ring is long.",
        RingHead = "stop_ring_head": "A descriptor number that is not in its table.",
        RingLoop = "stop_ring_loop": "A chain with a loop or of more than 1024 descriptors, or more than 2048 of them for one packet.",
        RingIndirect = "stop_ring_indirect": "An indirect table that was not agreed on, that is nested, or of a wrong length.",
        RingDirection = "stop_ring_direction": "A descriptor for writing in the transmit queue, or for reading in the receive queue.",
        RingAddress = "stop_ring_address": "A descriptor whose bytes lie outside of the guest's memory, or one for reception without bytes.",
        CallBlocked = "stop_call_blocked": "The front end made a call wait, or take very long, on purpose: no other one is taken until the next start.",
    }
}

segue::reasons! {
    /// Reason for which a packet from or for a guest was dropped.
    pub enum GuestDrop {
        NotReady = "guest_not_ready": "No guest was connected, or its driver was not ready.",
        NoBuffers = "guest_no_buffers": "The guest offered no receive buffers for 100 ms.",
        BufferTooSmall = "guest_buffer_too_small": "A receive buffer of a guest without mergeable buffers, or all that its ring can hold, was too small for the packet.",
        ChainLength = "guest_chain_length": "The guest sent a packet longer than 65,550 bytes.",
        Reset = "guest_reset": "The guest's memory went while the packet was copied.",
    }
}
