-- Dissectors for GUE (generic UDP encapsulation, as Linux and draft-ietf-intarea-gue have it) and FOU (foo over UDP),
-- for Wireshark and tshark 3.6 or newer.
--
-- A remote checksum option leaves the inner checksum to the receiver: the field holds the sum of the pseudo header, and
-- the outer UDP checksum protects the payload. This dissector shows start and offset of the option, completes the inner
-- checksum as the receiver will, and lets Wireshark judge the result (Edit > Preferences > Protocols > TCP > Validate,
-- or -o tcp.check_checksum:TRUE). Where the outer checksum is wrong or missing the receiver drops the packet: then
-- nothing is completed, an expert note says why, and the inner checksum is shown as it is, wrong.
--
-- Install: into the folder that Help > About > Folders calls "Personal Lua Plugins", or tshark -X lua_script:segue.lua.
-- Preferences: gue.ports (6080), fou.ports ("5555:ipip 5556:gre": port and what is inside).

-- Creates a protocol; if Wireshark has one of this name, as a later version may, without options, under another name.
local function proto(name, title)
    local made, found = pcall(Proto, name, title)
    if made then return found, name end
    return Proto("segue_" .. name, title .. " (segue)"), "segue_" .. name
end

local gue, gue_name = proto("gue", "Generic UDP Encapsulation")
local fou = proto("fou", "Foo over UDP")

local protocols = {
    [4] = "IPv4", [6] = "TCP", [17] = "UDP", [41] = "IPv6", [47] = "GRE", [59] = "no next header", [137] = "MPLS",
    [143] = "Ethernet",
}
local f = gue.fields
local function field(make, name, ...)
    local made = make(gue_name .. "." .. name, ...)
    f[#f + 1] = made
    return made
end
-- Fields must be given as a list.
f = {}
local version = field(ProtoField.uint8, "version", "Version", base.DEC, nil, 0xc0)
local control = field(ProtoField.bool, "control", "Control message", 8, nil, 0x20)
local hlen = field(ProtoField.uint8, "hlen", "Header length (words of options)", base.DEC, nil, 0x1f)
local next_protocol = field(ProtoField.uint8, "proto", "Protocol", base.DEC, protocols)
local control_type = field(ProtoField.uint8, "ctype", "Control type", base.DEC)
local flags = field(ProtoField.uint16, "flags", "Flags", base.HEX)
local private_flag = field(ProtoField.bool, "flags.private", "Private flags follow", 16, nil, 0x0001)
local unknown_flags = field(ProtoField.uint16, "flags.unknown", "Flags that Linux does not know", base.HEX, nil, 0xfffe)
local private = field(ProtoField.uint32, "private", "Private flags", base.HEX)
local remcsum_flag = field(ProtoField.bool, "private.remcsum", "Remote checksum follows", 32, nil, 0x80000000)
local unknown_private = field(ProtoField.uint32, "private.unknown", "Private flags that Linux does not know", base.HEX, nil, 0x7fffffff)
local remcsum_start = field(ProtoField.uint16, "remcsum.start", "Start of the sum", base.DEC, nil, nil, "Bytes behind the GUE header")
local remcsum_offset = field(ProtoField.uint16, "remcsum.offset", "Place of the checksum", base.DEC, nil, nil, "Bytes behind the GUE header")
local remcsum_value = field(ProtoField.uint16, "remcsum.completed", "Checksum after completion", base.HEX)
local remcsum_status = field(ProtoField.string, "remcsum.status", "Remote checksum")
local surplus = field(ProtoField.bytes, "surplus", "Surplus bytes, skipped")
-- The probe of segue (docs/health.md): a control message of its own type.
local probe_kind = field(ProtoField.uint8, "probe.kind", "Kind", base.DEC, { "hello", "echo request", "echo reply" })
local probe_proto = field(ProtoField.uint8, "probe.proto", "Protocol of the sender's tunnel", base.DEC, protocols)
local probe_key = field(ProtoField.uint32, "probe.key", "GRE key", base.DEC)
local probe_nonce = field(ProtoField.bytes, "probe.nonce", "Nonce")
gue.fields = f

local outer_bad = ProtoExpert.new(gue_name .. ".remcsum.outer_bad", "The outer UDP checksum is wrong: the receiver drops this packet",
    expert.group.CHECKSUM, expert.severity.ERROR)
local outer_absent = ProtoExpert.new(gue_name .. ".remcsum.outer_absent",
    "A remote checksum without an outer UDP checksum: the receiver drops this packet", expert.group.CHECKSUM, expert.severity.ERROR)
local bad_place = ProtoExpert.new(gue_name .. ".remcsum.place",
    "The place of the remote checksum is before its start, odd, or past the packet", expert.group.PROTOCOL, expert.severity.ERROR)
local malformed = ProtoExpert.new(gue_name .. ".malformed", "The header is shorter than its flags announce",
    expert.group.MALFORMED, expert.severity.ERROR)
local unknown_option = ProtoExpert.new(gue_name .. ".unknown", "A flag that Linux does not know: it drops this packet",
    expert.group.PROTOCOL, expert.severity.WARN)
gue.experts = { outer_bad, outer_absent, bad_place, malformed, unknown_option }

gue.prefs.ports = Pref.range("UDP ports", "6080", "The UDP ports of GUE", 65535)
fou.prefs.ports = Pref.string("UDP ports", "", "Port and what is inside: 5555:ipip, 5556:sit, 5557:gre, 5558:eth, or a protocol number")

local fou_protocol = ProtoField.uint8("fou.proto", "Protocol of the port", base.DEC, protocols)
fou.fields = { fou_protocol }

local udp_checksum, udp_length = Field.new("udp.checksum"), Field.new("udp.length")
local udp_source, udp_destination = Field.new("udp.srcport"), Field.new("udp.dstport")
local ip_source, ip_destination = Field.new("ip.src"), Field.new("ip.dst")
local ip6_source, ip6_destination = Field.new("ipv6.src"), Field.new("ipv6.dst")

-- The one's complement sum of a string of bytes, folded to 16 bits.
local function sum(bytes, before)
    local total = before or 0
    for at = 1, #bytes - 1, 2 do
        local high, low = bytes:byte(at, at + 1)
        total = total + high * 256 + low
    end
    if #bytes % 2 == 1 then total = total + bytes:byte(#bytes) * 256 end
    while total > 0xffff do total = total % 0x10000 + math.floor(total / 0x10000) end
    return total
end

-- The bytes of the innermost of several fields of this name.
local function last(extractor)
    local all = { extractor() }
    return all[#all]
end

local function bytes_of(info)
    return info.range:bytes():raw()
end

-- Judges the UDP checksum around a payload: "good", "bad", "absent", "unfinished" (left to the network card), or
-- "unknown".
local function outer_checksum(payload)
    local checksum, length = last(udp_checksum), last(udp_length)
    local source_port, destination_port = last(udp_source), last(udp_destination)
    if not (checksum and length and source_port and destination_port) then return "unknown" end
    if checksum.value == 0 then return "absent" end
    local v4, v6 = last(ip_source), last(ip6_source)
    -- The IP header nearest in front of the UDP header is the outer one.
    local is_v6 = v6 and (not v4 or v6.range:offset() > v4.range:offset())
    local source = is_v6 and v6 or v4
    local destination = is_v6 and last(ip6_destination) or last(ip_destination)
    if not (source and destination) then return "unknown" end
    local pseudo = sum(bytes_of(source) .. bytes_of(destination), 17 + length.value)
    if checksum.value == pseudo then return "unfinished" end
    if length.value ~= 8 + #payload then return "unknown" end
    local header = source_port.value + destination_port.value + length.value + checksum.value
    return sum(payload, pseudo + header) == 0xffff and "good" or "bad"
end

-- Calls the dissector of an IP protocol.
local function dissect_protocol(number, tvb, pinfo, tree)
    local names = { [4] = "ip", [41] = "ipv6", [47] = "gre", [143] = "eth_withoutfcs" }
    if number == 59 or tvb:len() == 0 then return end
    local dissector = names[number] and Dissector.get(names[number]) or DissectorTable.get("ip.proto"):get_dissector(number)
    if dissector then
        dissector:call(tvb, pinfo, tree)
    else
        Dissector.get("data"):call(tvb, pinfo, tree)
    end
end

-- Completes the remote checksum in a copy of the payload; returns that copy, or nil where a receiver would not.
local function complete(option, node, tvb, at, start, offset)
    local payload = tvb:raw(at)
    local reported = tvb:reported_len() - at
    if #payload < reported then
        node:add(remcsum_status, option, "not judged: the packet was cut when it was captured")
        return nil
    end
    if offset < start or (offset - start) % 2 == 1 or offset + 2 > #payload then
        node:add_proto_expert_info(bad_place)
        node:add(remcsum_status, option, "misplaced")
        return nil
    end
    local outer = outer_checksum(tvb:raw(0))
    if outer == "bad" or outer == "absent" then
        node:add_proto_expert_info(outer == "bad" and outer_bad or outer_absent)
        node:add(remcsum_status, option, "not completed: the outer UDP checksum is " .. (outer == "bad" and "wrong" or "missing"))
        return nil
    end
    local value = 0xffff - sum(payload:sub(start + 1))
    node:add(remcsum_value, option, value):set_generated()
    local notes = {
        good = "completed under a right outer UDP checksum",
        unfinished = "completed; the outer UDP checksum is left to the network card",
        unknown = "completed; the outer UDP checksum was not judged",
    }
    node:add(remcsum_status, option, notes[outer]):set_generated()
    -- For UDP a sum of 0 is written as all ones. Only its header is 8 bytes long with the checksum at 6.
    if value == 0 and offset - start == 6 then value = 0xffff end
    local low = value % 256
    local completed = payload:sub(1, offset) .. string.char((value - low) / 256, low) .. payload:sub(offset + 3)
    return ByteArray.new(completed, true):tvb("Remote checksum completed")
end

function gue.dissector(tvb, pinfo, tree)
    if tvb:len() < 1 then return 0 end
    local first = tvb(0, 1):uint()
    local number = math.floor(first / 64)
    if number == 1 then
        -- Version 1 is a bare IP packet.
        local kind = math.floor(first / 16)
        local node = tree:add(gue, tvb(0, 0), "Generic UDP Encapsulation, version 1 (no header)")
        node:add(version, tvb(0, 1))
        dissect_protocol(kind == 4 and 4 or kind == 6 and 41 or 59, tvb, pinfo, tree)
        return tvb:len()
    end
    local len = 4 + (first % 32) * 4
    if number ~= 0 or tvb:len() < math.max(len, 4) then
        if number == 0 then tree:add(gue, tvb(), "Generic UDP Encapsulation"):add_proto_expert_info(malformed) end
        return number == 0 and tvb:len() or 0
    end
    pinfo.cols.protocol = "GUE"
    local is_control = math.floor(first / 32) % 2 == 1
    local protocol = tvb(1, 1):uint()
    local node = tree:add(gue, tvb(0, len), string.format("Generic UDP Encapsulation, %s",
        is_control and "control message" or protocols[protocol] or ("protocol " .. protocol)))
    node:add(version, tvb(0, 1))
    node:add(control, tvb(0, 1))
    node:add(hlen, tvb(0, 1))
    node:add(is_control and control_type or next_protocol, tvb(1, 1))
    local word = tvb(2, 2):uint()
    local shown = node:add(flags, tvb(2, 2))
    shown:add(private_flag, tvb(2, 2))
    shown:add(unknown_flags, tvb(2, 2))
    if word >= 2 then shown:add_proto_expert_info(unknown_option) end
    local at, inner = 4, nil
    if word % 2 == 1 then
        if len < 8 then
            node:add_proto_expert_info(malformed)
            return tvb:len()
        end
        local bits = tvb(4, 4):uint()
        local more = node:add(private, tvb(4, 4))
        more:add(remcsum_flag, tvb(4, 4))
        more:add(unknown_private, tvb(4, 4))
        if bits % 0x80000000 ~= 0 then more:add_proto_expert_info(unknown_option) end
        at = 8
        if bits >= 0x80000000 then
            if len < 12 then
                node:add_proto_expert_info(malformed)
                return tvb:len()
            end
            local option = tvb(8, 4)
            local remote = node:add(gue, option, "Remote checksum")
            remote:add(remcsum_start, tvb(8, 2))
            remote:add(remcsum_offset, tvb(10, 2))
            inner = complete(option, remote, tvb, len, tvb(8, 2):uint(), tvb(10, 2):uint())
            at = 12
        end
    end
    -- Options of flags that are not known, or surplus that receivers skip.
    if at < len then node:add(surplus, tvb(at, len - at)) end
    if is_control then
        if tvb(1, 1):uint() == 0xd1 and tvb:len() == 24 and tvb(4, 4):uint() == 0x53475001 then
            local probe = node:add(gue, tvb(4, 20), "Probe of segue")
            probe:add(probe_kind, tvb(8, 1))
            probe:add(probe_proto, tvb(9, 1))
            if tvb(10, 1):uint() % 2 == 1 then probe:add(probe_key, tvb(12, 4)) end
            probe:add(probe_nonce, tvb(16, 8))
        elseif len < tvb:len() then
            Dissector.get("data"):call(tvb(len):tvb(), pinfo, tree)
        end
        return tvb:len()
    end
    if len < tvb:len() then dissect_protocol(protocol, inner or tvb(len):tvb(), pinfo, tree) end
    return tvb:len()
end

local inside = {}
function fou.dissector(tvb, pinfo, tree)
    if tvb:len() < 1 then return 0 end
    local protocol = inside[pinfo.dst_port] or inside[pinfo.src_port]
    if not protocol then
        -- "Decode as": the first four bits of IP are its version.
        local kind = math.floor(tvb(0, 1):uint() / 16)
        protocol = kind == 4 and 4 or kind == 6 and 41 or 47
    end
    pinfo.cols.protocol = "FOU"
    local node = tree:add(fou, tvb(0, 0), "Foo over UDP, " .. (protocols[protocol] or ("protocol " .. protocol)))
    node:add(fou_protocol, tvb(0, 0), protocol):set_generated()
    dissect_protocol(protocol, tvb, pinfo, tree)
    return tvb:len()
end

local table_of_ports = DissectorTable.get("udp.port")
local gue_ports
function gue.prefs_changed()
    if gue_ports == gue.prefs.ports then return end
    if gue_ports then table_of_ports:remove(gue_ports, gue) end
    gue_ports = gue.prefs.ports
    table_of_ports:add(gue_ports, gue)
end

local names = { ipip = 4, sit = 41, gre = 47, eth = 143 }
local function follow_fou()
    for port in pairs(inside) do table_of_ports:remove(port, fou) end
    inside = {}
    for port, name in fou.prefs.ports:gmatch("(%d+):(%w+)") do
        local number = names[name] or tonumber(name)
        if number and number < 256 and tonumber(port) < 65536 then
            inside[tonumber(port)] = number
            table_of_ports:add(tonumber(port), fou)
        end
    end
end

gue_ports = gue.prefs.ports
table_of_ports:add(gue_ports, gue)
table_of_ports:add_for_decode_as(fou)
fou.prefs_changed = follow_fou
follow_fou()

-- The verdicts of `segue pcap merge --explain` are comments of packets; a field of their own makes them a column or a
-- filter.
local segue = Proto("segue", "segue")
local why = ProtoField.string("segue.why", "Why it merged or not")
segue.fields = { why }
local comment = Field.new("frame.comment")
function segue.dissector(tvb, _, tree)
    for _, found in ipairs({ comment() }) do
        tree:add(segue, tvb(0, 0), "segue"):add(why, tvb(0, 0), tostring(found.value)):set_generated()
    end
end
register_postdissector(segue)
