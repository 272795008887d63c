"""Adapters for the fuzz target `registers`, and frames in transfers, for tools/fuzz-seeds: what the adapter is, what
happens to it, and what is said about single registers (`Plan` in fuzz/src/registers.rs)."""
import struct

from fuzz_streams import ACK, PSH, Flow

MARK = b"\xc5"
# Kinds of entries, in the three highest bits of a register.
READS, READ_FAILS, WRITE_FAILS, SHORT, SETS, CLEARS, EEPROM, PASSES = range(8)
STALL, TIMEOUT, GONE, DAMAGED, NO_MEMORY = range(5)
ID_REV, INT_STS, HW_CFG, PMT_CTL, DP_SEL, E2P_CMD, E2P_DATA = 0, 0xC, 0x10, 0x14, 0x24, 0x40, 0x44
USB_CFG0, USB_CFG1, INT_EP_CTL, RFE_CTL, FCT_RX_CTL, FCT_TX_CTL = 0x80, 0x84, 0x98, 0xB0, 0xC0, 0xC4
MAC_CR, MAC_RX, MAC_TX, MII_ACC, MII_DATA = 0x100, 0x104, 0x108, 0x120, 0x124
OTP_PWR_DN, OTP_RD_DATA, OTP_STATUS = 0x1000, 0x1018, 0x1030
COUNTERS = 0x1FFC
READ = {"id": ID_REV, "hw_cfg": HW_CFG, "pmt": PMT_CTL, "dp_sel": DP_SEL, "usb_cfg0": USB_CFG0, "usb_cfg1": USB_CFG1, "int_ep": INT_EP_CTL, "rfe": RFE_CTL,
        "fct_rx": FCT_RX_CTL, "fct_tx": FCT_TX_CTL, "mac_cr": MAC_CR, "mac_rx": MAC_RX, "mac_tx": MAC_TX, "mii": MII_ACC, "mii_data": MII_DATA, "counters": COUNTERS}
LTM = 1 << 8
BUSY, NO_EEPROM = 1 << 31, 1 << 10
# Bits of the four bytes of choices.
LAN7801, LAN7850, HIGH, FULL, IN_EEPROM, IN_OTP, HIGH_OTP, NOWHERE, NO_CABLE = 1, 2, 4, 8, 16, 32, 48, 64, 128
STANDARD, EEE, NO_PAUSE, TAGS, USER, PLATFORM, M100, M10, PLAIN = 1, 2, 4, 8, 16, 32, 64, 128, 192
STALL_IN, EMPTY, INTERRUPT, CUT, UNPLUG, CONTROL, AGAIN, STALL_OUT = (1 << bit for bit in range(8))
SUSPEND, POWER, MTUS, RECEIVE, SEND, STAY, REFUSE, PAUSE = (1 << bit for bit in range(8))


def entry(kind, register, value=0):
    return struct.pack(">HI", kind << 13 | register, value)


def plan(*entries, chip=0, config=0, faults=0, steps=0, answers=b""):
    return answers + b"".join(entries) + bytes([chip, config, faults, steps, len(entries)]) + MARK


def otp(first, *bytes_of_it):
    """An image in the OTP memory: the place of the latency tolerance words, then the words."""
    said = [first, 24, 0x40, first, *bytes_of_it]
    return [entry(SETS, USB_CFG1, LTM), entry(READS, OTP_PWR_DN, 1), *(entry(READS, OTP_RD_DATA, value) for value in said)]


def image(*more):
    """An EEPROM whose words of latency tolerance are at address 0x80."""
    return [entry(SETS, USB_CFG1, LTM), entry(EEPROM, 0x3F, 24), entry(EEPROM, 0x40, 0x40), *more]


def plans():
    for chip in (0, LAN7801, LAN7850):
        for name, speed in (("super", 0), ("high", HIGH), ("full", FULL)):
            for form in (0, STANDARD):
                yield f"chip-{chip}-{name}-{form}", plan(chip=chip | speed, config=form | EEE, steps=RECEIVE | SEND | MTUS)
    for name, identity in (("eeprom", IN_EEPROM), ("otp", IN_OTP), ("otp-high", HIGH_OTP), ("nowhere", NOWHERE)):
        for config in (0, USER, PLATFORM):
            yield f"address-{name}-{config}", plan(chip=identity, config=config)
        yield f"latency-unset-{name}", plan(entry(SETS, USB_CFG1, LTM), chip=identity)
    yield "latency-words", plan(*image(*(entry(EEPROM, 0x80 + n, n) for n in range(24))), chip=IN_EEPROM)
    yield "latency-7850", plan(*image(), chip=IN_EEPROM | LAN7850)
    yield "latency-length", plan(*image(entry(EEPROM, 0x3F, 23)), chip=IN_EEPROM)
    yield "latency-otp", plan(*otp(0xF3, *range(24)))
    yield "latency-otp-high", plan(*otp(0xF7, *range(24)))
    yield "latency-otp-none", plan(*otp(0x55))
    yield "eeprom-missing", plan(entry(SETS, USB_CFG1, LTM), entry(PASSES, E2P_CMD, 2), entry(READS, E2P_CMD, NO_EEPROM))
    yield "eeprom-ends", plan(*image(), entry(PASSES, E2P_CMD, 5), entry(READS, E2P_CMD, NO_EEPROM), chip=IN_EEPROM)
    yield "eeprom-busy", plan(*image(), entry(SETS, E2P_CMD, BUSY), chip=IN_EEPROM)
    yield "eeprom-fails", plan(*image(), entry(READ_FAILS, E2P_DATA, STALL), chip=IN_EEPROM)
    yield "otp-busy", plan(*otp(0xF3), entry(SETS, OTP_STATUS, 1))
    yield "otp-power", plan(*otp(0xF3), entry(SETS, OTP_PWR_DN, 1))
    yield "other-chip", plan(entry(READS, ID_REV, 0x12340000))
    for name, register in READ.items():
        for number, error in enumerate((STALL, TIMEOUT, GONE, DAMAGED)):
            if (number + register // 4) % 2:
                yield f"read-{name}-{error}", plan(entry(READ_FAILS, register, error))
        yield f"short-{name}", plan(entry(SHORT, register), steps=STAY)
        yield f"write-{name}", plan(entry(WRITE_FAILS, register, STALL), steps=STAY)
    for name, register, bits in (("reset", HW_CFG, 2), ("phy-reset", PMT_CTL, 16), ("mii", MII_ACC, 1), ("mac-reset", MAC_CR, 1)):
        yield f"stuck-{name}", plan(entry(SETS, register, bits))
    for name, register, bits in (("ready", PMT_CTL, 128), ("data-port", DP_SEL, BUSY)):
        yield f"stuck-{name}", plan(entry(CLEARS, register, bits))
    for name, register, bits in (("tx-fifo", FCT_TX_CTL, 1 << 20), ("mac-tx", MAC_TX, 2), ("mac-rx", MAC_RX, 2), ("rx-fifo", FCT_RX_CTL, 1 << 20)):
        yield f"stop-{name}", plan(entry(CLEARS, register, bits), steps=SUSPEND)
    # Errors while it runs: of the link's state, after so many accesses, and of the counters.
    for error in (STALL, TIMEOUT, GONE):
        yield f"link-{error}", plan(entry(PASSES, INT_STS, 1), entry(WRITE_FAILS, INT_STS, error), steps=STAY)
        yield f"counters-{error}", plan(entry(READ_FAILS, COUNTERS, error), steps=STAY | PAUSE)
        for count in (40, 90, 140):
            yield f"phy-{count}-{error}", plan(entry(PASSES, MII_ACC, count), entry(READ_FAILS, MII_ACC, error))
    for name, partner in (("1000", 0), ("100", M100), ("10", M10), ("plain", PLAIN)):
        for config in (0, NO_PAUSE):
            yield f"link-{name}-{config}", plan(config=partner | config, faults=AGAIN, steps=RECEIVE | SEND)
    yield "link-high", plan(chip=HIGH, config=M100, faults=AGAIN)
    yield "link-full", plan(chip=FULL, config=M10, faults=AGAIN)
    yield "no-cable", plan(chip=NO_CABLE, steps=SEND)
    for bit in range(8):
        for config in (0, STANDARD):
            yield f"fault-{bit}-{config}", plan(config=config, faults=1 << bit, steps=RECEIVE | SEND | STAY)
            yield f"fault-{bit}-{config}-link", plan(config=config, faults=1 << bit | AGAIN)
    for config in (0, STANDARD, TAGS):
        yield f"busy-{config}", plan(config=config, steps=RECEIVE | SEND | STAY)
        yield f"refused-{config}", plan(config=config, steps=REFUSE | RECEIVE)
    yield "paused", plan(config=M10, steps=SEND | STAY | PAUSE)
    yield "suspend", plan(steps=SUSPEND | RECEIVE | STAY)
    yield "power-lost", plan(steps=SUSPEND | POWER | RECEIVE | STAY)
    yield "resume-fails", plan(entry(PASSES, RFE_CTL, 2), entry(READ_FAILS, RFE_CTL, STALL), steps=SUSPEND | STAY)


def received(frame, flags=0, tag=0, csum=0):
    whole = struct.pack("<IHHH", flags | len(frame) + 4, tag, csum, 0) + frame + bytes(4)
    return whole + bytes(-len(whole) % 4)


NO_SUM, RED, TAGGED, WRONG_SUM = 1 << 14, 1 << 22, 1 << 23, 1 << 30


def transfers():
    """Transfers of frames with sums, tags and errors, for both forms of the driver, which put tags back or not."""
    plain, six, tagged, deep = Flow(1), Flow(1, True), Flow(2), Flow(3)
    frames = {
        "udp": plain.udp(0), "tcp": plain.tcp(0, flags=ACK | PSH), "tcp6": six.tcp(0), "icmp": plain.ip(1, bytes(40)), "options": plain.ip(17, plain.udp(0)[34:], options=bytes([1] * 4)),
        "extension": six.ip(17, six.udp(0)[54:], extension=bytes([17, 0, 1, 4, 0, 0, 0, 0])), "tagged": tagged.udp(0), "deep": deep.tcp(0), "fragment": plain.udp(0, fragment=0x2000),
        "arp": plain.tcp(0)[:12] + b"\x08\x06" + bytes(46),
    }
    for name, frame in frames.items():
        flags = (0, TAGGED, NO_SUM, RED | WRONG_SUM)
        for how in (0, 1, 3):
            yield f"{name}-{how}", bytes([how]) + b"".join(received(frame, flag, 0x2005, 0x1234) for flag in flags)
    # More frames than a poll delivers.
    for how in (0, 1, 3):
        yield f"many-{how}", bytes([how]) + received(bytes(14), TAGGED) * 100
